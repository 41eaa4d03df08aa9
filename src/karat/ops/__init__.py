"""The ops that models are written in, and the executors that run the ops."""
