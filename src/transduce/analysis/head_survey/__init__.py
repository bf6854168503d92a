"""What each head does over a whole corpus, and what is lost without it."""
