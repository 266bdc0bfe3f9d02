"""The questions every serving decision hangs on, one module a question, each answered by one function."""
