"""What the SDK does, without how it waits: each operation is a generator that yields the calls and pauses it needs.

The synchronous and the asyncio client run the same flows, so that retries, request ids and paging exist once and can be tested
without a network or a clock.
"""
