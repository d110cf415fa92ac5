"""Reports put into words: what each family of commands prints. Pure: nothing here prints."""
