"""What people meet at a terminal: the console, prompts, progress, and reports as text.."""
