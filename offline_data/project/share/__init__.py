"""Datasets for others: pushed to the Hugging Face hub, or to a folder that a web server may serve."""
