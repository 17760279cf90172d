"""Spark moves the data: this room holds what needs PySpark, and the Java below it."""
