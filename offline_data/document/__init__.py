"""A result as blocks, tables and named values, which terminal, notebooks, pages and cards show alike."""
