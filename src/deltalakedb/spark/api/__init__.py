"""What a user of Spark calls: `DeltaTable`, its builders, and SQL over tables of a lake."""
