all_reduce(x)
