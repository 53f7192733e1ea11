"""The vocabulary: a family of operations a file."""
