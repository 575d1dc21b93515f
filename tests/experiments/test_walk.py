"""The walk: its records, its report, its pictures, and how it refuses options."""

import re
from dataclasses import replace
from functools import partial
from io import BytesIO, StringIO

import numpy as np
import pytest
from PIL import Image

from experiments.measuring.refusal import Refusal
from experiments.walk import __main__ as command
from experiments.walk import trace as tracing
from experiments.walk.image import cut_patches, read_image
from experiments.walk.numbers import _beside
from experiments.walk.pictures.canvas import shown
from experiments.walk.records import Options
from experiments.walk.report import Progress
from numbacaps import ALGORITHMS, parse_product
from numbacaps.algorithms import indexed
from numbacaps.algorithms.passes import Passes
from numbacaps.algorithms.registry import device_algorithms
from numbacaps.stages import STAGES, whole

PNG = b"\x89PNG\r\n\x1a\n"
SMALL = ["--crop", "12,12", "--kernel", "2", "--stride", "1"]  # 3 x 3 capsules, 4 positions
RECORDS = len(STAGES) + 2 * len(device_algorithms())


def walk(arguments):
    """The trace of a walk from its command line, without the command's output."""
    options = vars(command._make_parser().parse_args(arguments))
    del options["out"], options["pictures"], options["html"]
    return tracing.walk(tracing.plan(Options(**options)))


def last_line(capsys):
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
def test_small_walk_passes_and_draws(tmp_path, capsys):
    folder = tmp_path / "new" / "pictures"
    assert command.main([*SMALL, "--out", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"walk: {RECORDS} passed, 0 failed"
    for stage in STAGES.values():
        assert stage.paper in out and stage.where in out and stage.formula in out
    for name in device_algorithms():
        algorithm = ALGORITHMS[name]
        assert f"{name}: {algorithm.summary}" in out
    pictures = sorted(folder.iterdir())
    assert [path.name[:3] for path in pictures] == [f"{i:02}-" for i in range(1, 10)]
    assert all(path.suffix == ".png" and path.read_bytes()[:8] == PNG for path in pictures)


def matrices(lines):
    """Those that stand side by side in lines of a report."""
    rows = [re.findall(r"-?\d+\.\d+(?: {1,2}-?\d+\.\d+)*", line) for line in lines]
    return [np.array([part.split() for part in column], float) for column in zip(*rows)]


def below(lines, title):
    """The four lines behind one that begins so."""
    (at,) = (i for i, line in enumerate(lines) if line.strip().startswith(title))
    return lines[at + 1 : at + 5]


def test_a_vote_and_its_sum_stand_there_in_numbers(capsys):
    assert command.main([*SMALL, "--algorithm", "indexed", "--no-pictures"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    (x,) = matrices(below(lines, "an input capsule, I_flat["))
    (w,) = matrices(below(lines, "its kernel capsule, K'["))
    left, right, vote = matrices(below(lines, "one product (a vote), I' @ K' = O'["))
    (total,) = matrices(below(lines, "the sum of 4 votes, that one among them, O["))
    assert x.shape == (4, 4) and np.abs(x).sum() > 0 and total.shape == (4, 4)
    assert np.array_equal(left, x) and np.array_equal(right, w)
    np.testing.assert_allclose(vote, x @ w, atol=0.005)  # of numbers with three decimals
    trace = walk([*SMALL, "--algorithm", "indexed"])
    (at,) = re.findall(r"among them, O\[0,0,(\d)\]", out)
    rows = trace.operands["O"].array.reshape(2, 4, 4, 4)[0, int(at)]
    np.testing.assert_allclose(total, rows, atol=0.001)


def test_of_the_simulator_no_time_is_printed(capsys):
    assert command.main([*SMALL, "--algorithm", "indexed", "--no-pictures"]) == 0
    out = capsys.readouterr().out
    assert not re.search(r"\d (s|ms|us)\b|times of|timed", out)


def test_of_large_matrices_the_beginning_is_printed():
    assert _beside([np.ones((1, 1)), "=", np.ones((6, 5))]) == [
        "            1.000  1.000  1.000  1.000 ...",
        "            1.000  1.000  1.000  1.000 ...",
        " 1.000  =   1.000  1.000  1.000  1.000 ...",
        "            1.000  1.000  1.000  1.000 ...",
        "              ...",
    ]


@pytest.mark.parametrize(
    ("where", "kept"),
    [("walk", "nothing was written yet"), ("report", "kept: 2 pictures in ")],
)
def test_ctrl_c_says_what_is_kept(where, kept, tmp_path, capsys, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    def drawn(trace, folder, progress):
        pictures = [folder / f"0{number}.png" for number in (1, 2)]
        for picture in pictures:
            picture.write_bytes(PNG)
        return pictures

    monkeypatch.setattr(command, "draw_all", drawn)
    monkeypatch.setattr(command, where, interrupted)
    arguments = [*SMALL, "--algorithm", "indexed", "--out", str(tmp_path)]
    assert command.main(arguments) == 130
    assert f"walk: interrupted; {kept}" in capsys.readouterr().err


def test_no_pictures_writes_nothing(tmp_path, capsys):
    folder = tmp_path / "walk"
    arguments = [*SMALL, "--algorithm", "indexed", "--no-pictures", "--out", str(folder)]
    assert command.main(arguments) == 0
    assert last_line(capsys) == f"walk: {len(STAGES) + 2} passed, 0 failed"
    assert not folder.exists()


@pytest.mark.slow
def test_stage_that_writes_nothing_fails(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(tracing.stages, "output_reduce", lambda slab, products, out: None)
    arguments = [*SMALL, "--algorithm", "indexed", "--out", str(tmp_path)]
    assert command.main(arguments) == 1
    out = capsys.readouterr().out
    assert "FLOP, error inf" in out
    assert out.splitlines()[-1] == f"walk: {len(STAGES) + 1} passed, 1 failed"


def test_wrong_algorithm_of_the_registry_fails(capsys, monkeypatch):
    class Ones(Passes):
        def forward(self, x, w, out, *, stream, room, packed=False):
            out.copy_to_device(np.ones(out.shape, out.dtype))

    wrong = replace(ALGORITHMS["indexed"], passes=partial(Ones, indexed), summary="all ones")
    monkeypatch.setitem(ALGORITHMS, "wrong", wrong)
    assert command.main([*SMALL, "--algorithm", "wrong", "--no-pictures"]) == 1
    out = capsys.readouterr().out
    assert "wrong: all ones" in out
    assert out.splitlines()[-1] == f"walk: {len(STAGES) + 1} passed, 1 failed"


@pytest.mark.slow
def test_rank_3_capsules_of_an_odd_picture(tmp_path, capsys):
    image = np.random.default_rng(1).integers(0, 256, (13, 9), dtype=np.uint8)
    np.save(tmp_path / "odd.npy", image)
    arguments = ["--image", str(tmp_path / "odd.npy"), "--product", "gab,gbc->gac", "--kernel"]
    arguments += ["2,3", "--stride", "1,2", "--padding", "1,0", "--channels", "2,1", "--dtype"]
    arguments += ["float64", "--algorithm", "indexed", "--out", str(tmp_path / "out")]
    assert command.main(arguments) == 0
    out = capsys.readouterr().out
    assert "odd.npy, 12 x 8 pixels: 3 x 4 capsules, each a patch of 4 x 2" in out
    assert "1 rows and 1 columns at the edge fill no patch" in out
    assert "input channel c is the image shifted c pixels to the right" in out
    assert len(list((tmp_path / "out").glob("*.png"))) == 9


@pytest.mark.slow
@pytest.mark.parametrize("product", ["ba,cb->ca", ",->", "abk,kcd->dacb"])
def test_any_product_passes_and_draws(tmp_path, product):
    arguments = ["--crop", "8,8", "--kernel", "2", "--product", product, "--channels", "1"]
    arguments += ["--stride", "4"] if product == ",->" else ["--stride", "1"]
    assert command.main([*arguments, "--algorithm", "indexed", "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.iterdir())) == 9


def test_shapes_agree_with_geometry():
    trace = walk([*SMALL, "--channels", "2,3", "--algorithm", "indexed"])
    g = trace.plan.geometry
    sizes = {name: getattr(g, name) for name in "N C H W P OH OW KH KW L Q G D1 D2 D3".split()}
    for operand in trace.operands.values():
        assert operand.shape == tuple(sizes[axis] for axis in operand.axes.split(", "))
        assert operand.array.dtype == np.float32
    assert trace.operands["I"].shape == g.input_shape
    assert trace.operands["dK"].shape == g.kernel_shape
    assert trace.operands["O'"].shape == whole(g).products_shape
    for record in trace.stages:
        assert (record.bytes, record.flop) == whole(g).traffic(record.name, 4)
    assert [record.name for record in trace.stages] == list(STAGES)
    # A stage reads what the stages before it wrote, not a copy of its own.
    made = {id(record.output) for record in trace.stages}
    given = {id(trace.operands[name]) for name in ("I", "K", "dO")}
    for record in trace.stages:
        assert all(id(operand) in made | given for operand in record.inputs)


def test_dI_lies_where_the_pixels_lie():
    trace = walk(["--crop", "8,8", "--kernel", "2", "--product", "ba,cb->ca", "--channels", "2,1"])
    assert np.array_equal(trace.image_of("I"), trace.plan.patches.pixels)
    assert trace.image_of("dI").shape == (2, 8, 8)


def test_patches_and_channels():
    image = np.arange(35.0).reshape(5, 7)
    patches = cut_patches(image, (2, 3), 2, np.float32)
    assert patches.grid == (2, 2) and patches.cropped == (1, 1)
    assert np.array_equal(patches.capsules[0, 0, 1, 0], [[14, 15, 16], [21, 22, 23]])
    assert np.array_equal(patches.pixels[1, :, 1:], image[:4, :5])
    assert not patches.pixels[1, :, 0].any()
    assert np.array_equal(patches.lay_out(patches.capsules), patches.pixels)


def test_pictures_become_grey_from_0_to_1(tmp_path):
    colours = np.zeros((4, 6, 3), np.uint8)
    colours[1, 2] = 255
    Image.fromarray(colours).save(tmp_path / "colours.png")
    grey = read_image(tmp_path / "colours.png")
    assert grey.shape == (4, 6) and grey[1, 2] == 1 and grey.sum() == 1
    np.save(tmp_path / "wide.npy", np.array([[-3, 1], [5, 5]]))
    assert np.array_equal(read_image(tmp_path / "wide.npy"), [[0, 0.5], [1, 1]])


@pytest.mark.parametrize("name", ["large.png", "many.npy"])
def test_a_large_image_is_refused_before_it_is_decoded(files, name, monkeypatch):
    def decoded(*_, **__):
        raise AssertionError("the pixels were read")

    for of, what in ((np, "fromfile"), (np, "load"), (np, "asarray"), (Image.Image, "convert")):
        monkeypatch.setattr(of, what, decoded)
    with pytest.raises(Refusal, match=r"of shape \(5000, 5000\); it takes 1 to 16,777,216 pixels"):
        read_image(files / name)


def test_arrays_are_read_as_they_lie(tmp_path):
    image = np.random.default_rng(0).random((3, 5))
    for array in (image, np.asfortranarray(image), image.astype(">f8"), image[:, ::-1]):
        np.save(tmp_path / "a.npy", array)
        assert np.array_equal(read_image(tmp_path / "a.npy"), array)
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, image, version=(2, 0))
    assert np.array_equal(read_image(tmp_path / "a.npy"), image)


@pytest.mark.slow
def test_blank_image_passes(tmp_path):
    np.save(tmp_path / "blank.npy", np.zeros((12, 12)))
    arguments = ["--image", str(tmp_path / "blank.npy"), "--kernel", "2", "--algorithm", "indexed"]
    assert command.main([*arguments, "--out", str(tmp_path / "out")]) == 0


# What stands in a header in the place of its shape.
DAMAGED = {
    "bracket": b"(28, 28(",
    "list": b"[28, 28]",
    "byte": b"(28,\x0028)",
    "name": b"(28, ab)",
    "negative": b"(-8, -8)",
    "float": b"(28, 28.)",
    "longer": b"(99, 99)",
    "many": b"(5000, 5000)",
}


@pytest.fixture
def files(tmp_path):
    """Files that --image or --out must refuse, and a name in {braces} for each."""
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.save(tmp_path / "cube.npy", np.zeros((3, 4, 5)))
    np.save(tmp_path / "nan.npy", np.full((28, 28), np.nan))
    np.save(tmp_path / "words.npy", np.full((28, 28), "x"))
    np.save(tmp_path / "void.npy", np.zeros((0, 28)))
    np.save(tmp_path / "objects.npy", np.full((28, 28), None))
    with open(tmp_path / "several.npy", "wb") as file:
        np.savez(file, a=np.zeros((28, 28)))
    saved = BytesIO()
    np.save(saved, np.zeros((28, 28)))
    whole, shape = saved.getvalue(), b"(28, 28), }" + 8 * b" "
    for name, other in DAMAGED.items():
        damaged = whole.replace(shape, (other + b", }").ljust(len(shape)))
        (tmp_path / f"{name}.npy").write_bytes(damaged)
    (tmp_path / "cut.npy").write_bytes(whole[:-1])
    Image.new("1", (5000, 5000)).save(tmp_path / "large.png")  # 3 KB
    picture = BytesIO()
    Image.fromarray(np.arange(784).astype(np.uint8).reshape(28, 28)).save(picture, "png")
    (tmp_path / "cut.png").write_bytes(picture.getvalue()[:60])
    return tmp_path


BAD = [
    ["--image", "{0}/absent.png"],
    ["--image", "{0}"],
    ["--image", "{0}/text.png"],
    ["--image", "{0}/empty.npy"],
    ["--image", "{0}/cube.npy"],
    ["--image", "{0}/nan.npy"],
    ["--image", "{0}/words.npy"],
    ["--image", "{0}/void.npy"],
    ["--image", "{0}/objects.npy"],
    ["--image", "{0}/several.npy"],
    *(["--image", f"{{0}}/{name}.npy"] for name in (*DAMAGED, "cut")),
    ["--image", "{0}/large.png"],
    ["--image", "{0}/cut.png"],
    ["--crop", "29,28"],
    ["--crop", "28"],
    ["--crop", "0,4"],
    ["--kernel", "8"],
    ["--kernel", "1.5"],
    ["--kernel", "3", "--dilation", "4"],
    ["--stride", "0"],
    ["--stride", "1,2,3"],
    ["--padding", "-1"],
    ["--padding", "99999999999999999999"],
    ["--dilation", "0"],
    ["--channels", "0"],
    ["--channels", "two"],
    ["--product", "ab,bc"],
    ["--product", "ab,bc->a"],
    ["--sizes", "a=0"],
    ["--sizes", "a=2,a=3"],
    ["--sizes", "z=2"],
    ["--sizes", "a=40"],
    ["--algorithm", "fastest"],
    ["--dtype", "float16"],
    ["--seed", "-1"],
    ["--out", "{0}/text.png"],
    ["--out", "{0}/text.png/deeper"],
]


@pytest.mark.parametrize("bad", BAD, ids=" ".join)
def test_bad_option_is_refused(files, capsys, monkeypatch, bad):
    monkeypatch.chdir(files)
    before = sorted(files.rglob("*"))
    with pytest.raises(SystemExit) as stopped:
        command.main([word.format(files) for word in bad])
    assert stopped.value.code == 2
    captured = capsys.readouterr()
    message = captured.err.strip()
    assert bad[0] in message and "\n" not in message and not captured.out
    assert bad[1].format(files).split("=")[0].split(",")[0] in message
    assert "takes" in message or "choose from" in message
    assert sorted(files.rglob("*")) == before


@pytest.mark.parametrize(
    "large", [["--kernel", "1", "--stride", "1", "--channels", "9,9"], ["--padding", "1000000"]]
)
def test_too_much_work_is_refused(tmp_path, capsys, monkeypatch, large):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        command.main(large)
    assert stopped.value.code == 2
    message = capsys.readouterr().err
    assert "--crop" in message and f"{tracing.MOST_STEPS:,} steps" in message
    assert not list(tmp_path.iterdir())


def test_help_names_every_option(capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for option in (
        "--image --crop --kernel --stride --padding --dilation --channels --product --sizes "
        "--algorithm --dtype --seed --out --html --no-pictures"
    ).split():
        assert option in text
    assert text.count("python -m experiments.walk --") >= 2


def test_default_sizes_follow_the_capsules_rank():
    assert tracing.default_sizes(parse_product("ab,bc->ac")) == {"a": 4, "b": 4, "c": 4}
    assert set(tracing.default_sizes(parse_product("gab,gbc->gac")).values()) == {2}
    assert tracing.default_sizes(parse_product(",->")) == {}


@pytest.mark.parametrize(
    "count, most, keep",
    [(3, 5, []), (9, 5, [4]), (60, 10, [59]), (7, 6, [6]), (60, 12, [1, 30, 40])],
)
def test_shown_keeps_its_places(count, most, keep):
    places = shown(count, most, keep)
    found = [place for place in places if place is not None]
    assert len(places) <= most and found == sorted(set(found)) and set(keep) <= set(found)
    missing = count - len(found)
    assert (missing == 0) == (None not in places)


class Terminal(StringIO):
    def isatty(self):
        return True


def test_progress_is_rewritten_on_a_terminal_alone():
    terminal, plain = Terminal(), StringIO()
    for stream in (terminal, plain):
        progress = Progress(stream)
        progress("a long line")
        progress("short")
        progress.clear()
    assert "\n" not in terminal.getvalue() and terminal.getvalue().endswith("\r")
    assert "\rshort      " in terminal.getvalue()
    assert plain.getvalue() == "walk: a long line\nwalk: short\n"
