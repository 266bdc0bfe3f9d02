"""The command line: one file a command, and no physics."""
