"""Migrations of the models of `ojster.django`, which have no tables."""
