"""What happens to bytes on their way to and from backends, whatever they mean: compress, encrypt, verify."""
