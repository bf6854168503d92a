"""From text files to a corpus that training can read (section 5.1)."""
