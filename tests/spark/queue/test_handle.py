"""The text of the `lease` column, there and back."""

import pytest

from headrace.spark.queue.handle import Handle


@pytest.mark.parametrize(
    ("handle", "text"),
    [
        (Handle("s", 3, 7), "s/3/7"),
        (Handle("s", 3, 7, replayed=True), "s/3/7/replayed"),
        (Handle("s", 3, 7, "10.0.0.5:4711"), "s/3/7/10.0.0.5:4711"),
        (Handle("s", 3, 7, "10.0.0.5:4711", True), "s/3/7/10.0.0.5:4711/replayed"),
        (Handle("s", 3, 7, group="g", brokers="a:1,b:2"), "s/3/7/g@a:1,b:2"),
        (Handle("s", 3, 7, held=70), "s/3/7/held=70"),
        (Handle("s", 3, 7, held=70, left_out=30), "s/3/7/held=70-30"),
        (
            Handle("s", 3, 7, "10.0.0.5:4711", True, "a/b@c", "[::1]:9092"),
            "s/3/7/a%2Fb%40c@[::1]:9092/10.0.0.5:4711/replayed",
        ),
    ],
)
def test_what_is_written_is_read(handle: Handle, text: str) -> None:
    assert handle.text == text
    assert Handle.parse(text) == handle


@pytest.mark.parametrize(
    "text", ["", "s/1", "s/x/1", "s/1/2/held=x", "s/1/2/a:1/b:2", "s/1/2/g@a:1/b:2/c:3"]
)
def test_what_is_no_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid lease .* do not change or fill it"):
        Handle.parse(text)
