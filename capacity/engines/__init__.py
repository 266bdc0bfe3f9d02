"""What serving engines do with the memory they are given, by version."""
