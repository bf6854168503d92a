"""Looking inside: pictures and costs."""
