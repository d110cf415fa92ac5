"""A push channel over a broker: devices tell each other that there is something new, and not what.

A topic is a keyed hash, a message is random bytes. Both say nothing to whoever runs the broker but when somebody
pushes. A message is a hint: it brings a look forward that would have come by itself, and a broker that is away, lies,
or floods costs time or a bounded number of looks, nothing else.
"""
