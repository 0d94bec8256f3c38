"""OpenML's tables, as contextual bandits."""
