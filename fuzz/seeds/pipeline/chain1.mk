reduce_scatter(x)
