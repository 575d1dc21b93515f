"""Where bytes lie that TMA swizzles: the 16-byte pieces of a row change places."""


def swizzled(address, row):
    """Where the bytes at some addresses lie, in rows of 32, 64 or 128 bytes; 0 for no swizzle.

    The bits that number a 16-byte piece in its row are exclusive-ored with bits 7 and up of the address.
    """
    return address ^ (address >> 7 & (row // 16 - 1)) << 4 if row else address
