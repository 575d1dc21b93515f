"""What the paper reports in its Table 1, to stand beside what is measured here."""

GPU = "TITAN X Pascal"
# row: (forward, backward) milliseconds
TABLE_1 = {"GPU": (650, 1570), "official APIs": (170, 340), "custom APIs": (170, 350)}
# algorithm: the row that it stands for
ROWS = {
    "naive": "GPU",
    "cublas": "official APIs",
    "indexed": "custom APIs",
    "staged": "custom APIs",
}
CAVEAT = (
    "The paper's times are of a TITAN X Pascal with CUDA 10.0. It states no batch size and no repeat "
    "count: at batch 128 the forward pass is 1.914 GFLOP, so 170 ms would be about 11 GFLOP/s on an "
    "11 TFLOP/s card."
)
