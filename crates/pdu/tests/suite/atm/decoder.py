"""Decode ATM cells with AAL5 and AAL3/4, by the rules of docs/atm.md.

This program judges another implementation: it shares no code with it, and computes each CRC bit
by bit. It needs Python 3.11 and its standard library.

    python3 decoder.py PDU_BYTES CIRCUIT...

PDU_BYTES is the length of the longest accepted PDU in bytes. Each CIRCUIT is an open circuit,
VPI.VCI:aal5 or VPI.VCI:aal34. Standard input has the cells, 53 bytes each, one after the other.

Standard output gets one line for each cell:

    waits                       the PDU begins or goes on
    pdu VPI VCI MID UU HEX      the PDU is complete (MID is 0 for AAL5, UU is 0 for AAL3/4)
    drop COUNTER                every other outcome, by the name of its counter

The last line is "unfinished N": N incomplete PDUs ended because another began (rule 8 of AAL3/4).

The exit status is 0 if the input was whole cells, 1 if it was not (nothing is decoded then) or if
a CRC has a wrong check value, and 2 if an argument is wrong.
"""

import argparse
import sys
from dataclasses import dataclass

CELL_BYTES = 53
HEADER_BYTES = 5
PAYLOAD_BYTES = 48

# The segment types (ST) of AAL3/4.
COM, EOM, BOM, SSM = 0, 1, 2, 3
# The LI of an EOM that aborts its PDU.
ABORT = 63
# The bytes that the header and the trailer of AAL3/4 add to a PDU.
AAL34_OVERHEAD = 8

WAITS = "waits"


@dataclass(frozen=True)
class Crc:
    """A CRC that is not reflected, with its check value: the CRC of the digits 123456789."""

    name: str
    width: int
    polynomial: int
    initial: int
    final_xor: int
    check: int

    def of(self, bits):
        """Return the CRC of a string of the digits 0 and 1."""
        top = 1 << (self.width - 1)
        mask = (1 << self.width) - 1
        register = self.initial
        for bit in bits:
            if bit == "1":
                register ^= top
            if register & top:
                register = ((register << 1) & mask) ^ self.polynomial
            else:
                register <<= 1
        return register ^ self.final_xor


HEC = Crc("HEC", 8, 0x07, 0, 0x55, 0xA1)
CRC_10 = Crc("CRC-10", 10, 0x233, 0, 0, 0x199)
CRC_32 = Crc("CRC-32", 32, 0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, 0xFC891918)


def bits_of(content):
    """Return bytes as a string of the digits 0 and 1, the most significant bit first."""
    return "".join(format(byte, "08b") for byte in content)


def number(bits, first, last):
    """Return the number in the bits from first to last, both included."""
    return int(bits[first:last + 1], 2)


def big_endian(content):
    """Return the number in big-endian bytes."""
    return int.from_bytes(content, "big")


def round_up(count, multiple):
    """Return the count, rounded up to a multiple."""
    return -(-count // multiple) * multiple


def aal5_bytes(length):
    """Return how many bytes of payload an AAL5 PDU fills: itself, its padding and its trailer."""
    return round_up(length + 8, PAYLOAD_BYTES)


def aal34_bytes(length):
    """Return the sum of the pieces of an AAL3/4 PDU: itself, padding, header and trailer."""
    return round_up(length, 4) + AAL34_OVERHEAD


def drop(counter):
    """Return the line of a dropped cell."""
    return f"drop {counter}"


class Aal5Circuit:
    """A circuit with AAL5: one PDU after the other."""

    def __init__(self, vpi, vci, longest):
        self.vpi = vpi
        self.vci = vci
        self.longest = longest
        self.unfinished = 0  # Stays 0: only AAL3/4 has the rule.
        self.payloads = bytearray()
        self.skips = False

    def receive(self, payload, is_last):
        """Handle a cell's payload by the rules from 5 on, and return its line."""
        if self.skips:
            self.skips = not is_last
            return drop("skipped")
        if len(self.payloads) + PAYLOAD_BYTES > aal5_bytes(self.longest):
            self.payloads = bytearray()
            self.skips = not is_last
            return drop("too_long")
        self.payloads += payload
        if not is_last:
            return WAITS
        # Whatever the outcome of the last cell, the next one begins a PDU.
        payloads, self.payloads = self.payloads, bytearray()
        return self.finish(payloads)

    def finish(self, payloads):
        """Return the line of a PDU's last cell, from all its payloads (rules 8 to 12)."""
        if CRC_32.of(bits_of(payloads[:-4])) != big_endian(payloads[-4:]):
            return drop("damaged")
        user_to_user, cpi = payloads[-8], payloads[-7]
        length = big_endian(payloads[-6:-4])
        if length == 0:
            return drop("aborted")
        if cpi != 0 or aal5_bytes(length) != len(payloads):
            return drop("malformed")
        if length > self.longest:
            return drop("too_long")
        return f"pdu {self.vpi} {self.vci} 0 {user_to_user} {payloads[:length].hex()}"


@dataclass
class Aal34Pdu:
    """An incomplete PDU of AAL3/4: its pieces, joined, and the sequence number of the last one."""

    sequence_number: int
    pieces: bytearray

    @property
    def cpi(self):
        """The CPI of the header. Every first piece has the whole header: its LI is 8 or more."""
        return self.pieces[0]

    @property
    def beginning_tag(self):
        """The BTag of the header."""
        return self.pieces[1]

    @property
    def size(self):
        """The BASize of the header."""
        return big_endian(self.pieces[2:4])


class Aal34Circuit:
    """A circuit with AAL3/4: one PDU of each MID at a time."""

    def __init__(self, vpi, vci, longest):
        self.vpi = vpi
        self.vci = vci
        self.longest = longest
        self.unfinished = 0
        self.incomplete = {}  # The incomplete PDUs, by MID.

    def receive(self, payload, _is_last):
        """Handle a cell's payload by the rules from 5 on, and return its line."""
        bits = bits_of(payload)
        if CRC_10.of(bits[:374]) != number(bits, 374, 383):
            return drop("cell_crc")
        segment_type = number(bits, 0, 1)
        sequence_number = number(bits, 2, 5)
        mid = number(bits, 6, 15)
        length = number(bits, 368, 373)
        if not is_allowed(segment_type, length):
            return drop("cell_length")
        # Every line from rule 8 on ends the PDU, except rule 14, which puts it back.
        pdu = self.incomplete.pop(mid, None)
        if segment_type in (COM, EOM):
            if pdu is None:
                return drop("no_beginning")
            if segment_type == EOM and length == ABORT:
                return drop("aborted")
            if sequence_number != (pdu.sequence_number + 1) % 16:
                return drop("out_of_sequence")
        elif pdu is not None:
            self.unfinished += 1
        piece = payload[2:2 + length]
        if segment_type in (BOM, SSM):
            pdu = Aal34Pdu(sequence_number, bytearray(piece))
            if pdu.cpi != 0:
                return drop("malformed")
            if pdu.size > self.longest:
                return drop("too_long")
        else:
            pdu.sequence_number = sequence_number
            pdu.pieces += piece
        if len(pdu.pieces) > aal34_bytes(pdu.size):
            return drop("malformed")
        if segment_type in (BOM, COM):
            self.incomplete[mid] = pdu
            return WAITS
        return self.finish(mid, pdu)

    def finish(self, mid, pdu):
        """Return the line of a PDU's last cell (rules 15 to 17)."""
        alignment, end_tag = pdu.pieces[-4], pdu.pieces[-3]
        length = big_endian(pdu.pieces[-2:])
        if alignment != 0 or end_tag != pdu.beginning_tag:
            return drop("malformed")
        if length == 0 or length > pdu.size or aal34_bytes(length) != len(pdu.pieces):
            return drop("malformed")
        return f"pdu {self.vpi} {self.vci} {mid} 0 {pdu.pieces[4:4 + length].hex()}"


def is_allowed(segment_type, length):
    """Return True if the segment type of AAL3/4 allows the LI."""
    if segment_type in (BOM, COM):
        return length == 44
    if segment_type == EOM and length == ABORT:
        return True
    shortest = 4 if segment_type == EOM else 8
    return shortest <= length <= 44 and length % 4 == 0


def decode(cell, circuits):
    """Handle a cell by the rules, and return its line."""
    header, payload = cell[:HEADER_BYTES], cell[HEADER_BYTES:]
    bits = bits_of(header)
    if HEC.of(bits[:32]) != number(bits, 32, 39):
        return drop("hec")
    vpi = number(bits, 4, 11)
    vci = number(bits, 12, 27)
    payload_type = number(bits, 28, 30)
    if (vpi, vci) == (0, 0):
        return drop("idle")
    if (vpi, vci) not in circuits:
        return drop("no_circuit")
    if payload_type >= 4:
        return drop("management")
    return circuits[vpi, vci].receive(payload, payload_type & 1 == 1)


def check_crcs():
    """End the program if a CRC does not have its check value."""
    digits = bits_of(b"123456789")
    for crc in (HEC, CRC_10, CRC_32):
        value = crc.of(digits)
        if value != crc.check:
            sys.exit(f"decoder: the check value of {crc.name} is {value:#x}, not {crc.check:#x}")


def number_argument(text, least, most):
    """Return the decimal number of an argument from least to most."""
    if not (text.isascii() and text.isdigit() and least <= int(text) <= most):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
    return int(text)


def pdu_bytes_argument(text):
    """Return the length of the longest accepted PDU from its argument."""
    return number_argument(text, 1, 65535)


def circuit_argument(text):
    """Return VPI, VCI and the class of a circuit from its argument."""
    layers = {"aal5": Aal5Circuit, "aal34": Aal34Circuit}
    name, _, layer = text.partition(":")
    vpi, _, vci = name.partition(".")
    if layer not in layers:
        raise argparse.ArgumentTypeError(f"{text!r} does not end with :aal5 or :aal34")
    return number_argument(vpi, 0, 255), number_argument(vci, 0, 65535), layers[layer]


def open_circuits(parser, arguments):
    """Return the open circuits by VPI and VCI."""
    circuits = {}
    for vpi, vci, layer in arguments.circuits:
        if (vpi, vci) in circuits:
            parser.error(f"the circuit {vpi}.{vci} is given twice")
        circuits[vpi, vci] = layer(vpi, vci, arguments.pdu_bytes)
    return circuits


def main():
    """Decode the cells of standard input."""
    check_crcs()
    parser = argparse.ArgumentParser(description="Decode ATM cells with AAL5 and AAL3/4.")
    parser.add_argument("pdu_bytes", metavar="PDU_BYTES", type=pdu_bytes_argument)
    parser.add_argument("circuits", metavar="CIRCUIT", type=circuit_argument, nargs="+")
    circuits = open_circuits(parser, parser.parse_args())
    cells = sys.stdin.buffer.read()
    remainder = len(cells) % CELL_BYTES
    if remainder != 0:
        sys.exit(
            f"decoder: the input ends within a cell: after {len(cells) // CELL_BYTES} cells of "
            f"{CELL_BYTES} bytes, {remainder} bytes are left"
        )
    for start in range(0, len(cells), CELL_BYTES):
        print(decode(cells[start:start + CELL_BYTES], circuits))
    print("unfinished", sum(circuit.unfinished for circuit in circuits.values()))


if __name__ == "__main__":
    main()
