"""What people meet at a terminal: the console, prompts, progress; `text` puts reports into words."""
