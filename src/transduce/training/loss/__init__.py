"""What training lowers."""
