"""Tables as Kafka's tools print them: a blank line, then rows of padded cells."""

from collections.abc import Iterator, Sequence

MISSING = "-"
SHOWN_MAX = 80  # characters of what producers write, such as a value
Cell = str | int | None


def harmless(line: str) -> str:
    """The line without what a terminal acts on: clients choose their names as they like."""
    if line.isprintable():
        return line
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in line)


def shortened(data: bytes) -> str:
    """The beginning of what a producer wrote, of which nothing but the beginning is looked at."""
    text = data[: 4 * SHOWN_MAX].decode(errors="backslashreplace")
    cut = len(text) > SHOWN_MAX or len(data) > 4 * SHOWN_MAX
    return f"{text[:SHOWN_MAX]}..." if cut else text


def text_of(cell: Cell) -> str:
    """A cell as it is printed; None is a dash."""
    return MISSING if cell is None else harmless(str(cell))


class Table:
    """Rows under a head; a column is as wide as its widest cell, and as `least` says.

    A column with `least` 0 is not padded, as Kafka's last ones are not.
    """

    def __init__(self, *columns: tuple[str, int]) -> None:
        self._heads = [head for head, _ in columns]
        self._widths = [least for _, least in columns]
        self._rows: list[list[str]] = []

    def add(self, *cells: Cell) -> None:
        """One more row; None is shown as a dash."""
        assert len(cells) == len(self._heads), "a cell for each column"
        self._rows.append(list(map(text_of, cells)))

    def lines(self) -> Iterator[str]:
        """The head and the rows."""
        widths = [
            least and max([least, *(len(row[index]) for row in self._rows)])
            for index, least in enumerate(self._widths)
        ]
        for row in (self._heads, *self._rows):
            yield _padded(row, widths)

    def show(self) -> None:
        """Print it, with a blank line before it."""
        print("", *self.lines(), sep="\n")


def _padded(row: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(
        f"{cell:<{width}}" if width else cell for cell, width in zip(row, widths, strict=True)
    )
