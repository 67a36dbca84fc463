"""Words that every other package uses: ids, units, money, errors, codec, crypto, merkle, events, limits."""
