"""The model computed fast, and autograd functions over the native library."""
