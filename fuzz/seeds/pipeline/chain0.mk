gather(a)
