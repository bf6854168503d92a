"""Speed and memory beside other libraries, measured by turns."""
