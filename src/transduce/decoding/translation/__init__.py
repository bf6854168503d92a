"""What is translated as one, what it is translated to, and lines made of it again."""
