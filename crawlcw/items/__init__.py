"""Items made from the annotations of their classes."""
