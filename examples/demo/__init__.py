"""The demo: a broker, 100,000 messages, wrong clocks, a kill -9, and proof that nothing is lost.

`make demo` runs it (`python -m demo` with this folder's parent on the path). What it claims, it
checks: everything sent is recorded beside the broker (`truth`), everything the broker answers is
compared with that record (`checks`), and the first difference ends it with exit code 1.

    broker    the process under test: start, kill -9, stop
    truth     what was sent when, and what was acknowledged
    publish   the producers: official client and wrong clocks
    ask       the questions: read everything back, seek by time over gRPC and with the client
    checks    pure functions that compare answers with the truth
    story     the demo's steps in order
    report    the closing table
    plot      the picture
"""
