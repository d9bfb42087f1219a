"""The programs, a module for each row of the table: a `main(run)` that records a curve, such as its losses."""
