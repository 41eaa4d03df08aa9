"""From wrong results to the names of mistakes: what is assumed, tried and searched for, and how it is said."""
