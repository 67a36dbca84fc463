import time

from verify_story import *

from farflung.verify.reader import verify_run


def test_x():
    t = time.time()
    s = Story()
    e = s.export()
    u = time.time()
    print(verify_run(e))
    print(u - t, time.time() - u)
