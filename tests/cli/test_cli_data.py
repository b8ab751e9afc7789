from fedjax_drag.data import DATASETS


def test_status_tells_what_is_there(command, tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    (tmp_path / "adult").mkdir()
    for file in ("adult.data", "adult.test.gz"):
        (tmp_path / "adult" / file).touch()
    result = command("data", "status", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    places = dict(line.split() for line in result.stdout.splitlines()[::2])
    assert list(places) == [name for name, _ in DATASETS]
    here = dict.fromkeys(["digits", "synthetic", "digits_pairs", "shapes"], "always")
    here |= dict.fromkeys(["adult", "adult_hours"], str(tmp_path / "adult"))
    assert places == dict.fromkeys(places, "-") | here


def test_skew_prints_and_draws_without_running(command, tiny_file, tmp_path):
    result = command("data", "skew", tiny_file, "-o", "new/skew.png")
    assert result.exit_code == 0, result.output
    assert "8 clients, 1,442 examples, 10 classes" in result.stdout
    assert result.stdout.rstrip().endswith("heat map in new/skew.png")
    assert (tmp_path / "new" / "skew.png").stat().st_size > 5000
    assert not (tmp_path / "runs").exists()


def test_errors_are_one_line(command, tiny_file):
    for arguments, message in (
        (("data", "skew", tiny_file, "partition=natural"), "digits: has no natural users"),
        (("data", "skew", "none.yaml"), "none.yaml"),
        (("data", "skew", tiny_file, "-o", "skew.txt"), "output 'skew.txt': must end in .png, .pdf, .svg"),
        (("data", "skew", tiny_file, "-o", tiny_file / "a.png"), "a.png': cannot be written ("),
        (("data", "status", "--data-dir", "none"), "data_dir='none': no such folder"),
        (("data", "prepare", "digits"), "name='digits': must be one of"),
        (("data", "prepare", "mnist"), "mnist: give the folder of its original files (--from DIR, source_dir)"),
    ):
        result = command(*arguments)
        assert result.exit_code == 2, result.output
        (line,) = result.stderr.splitlines()
        assert line.startswith("fedjax-drag: error: ")
        assert message in line
