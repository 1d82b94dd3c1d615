"""The only room that uses a GPU. It is imported when first used, and says so clearly if there is no GPU."""
