"""The programs in examples/, and what each of them prints."""

EXAMPLES = {
    "reserve_and_run.py": r"[\d,]+\nit's \$HOME\nexit code 1: out of memory\ncancelled\n",
    "wait_with_progress.py": r"h100: \d of 8 free\n(?:pending|queued|preparing|active): (?s:.*)ready: ssh .*\n",
    "many_at_once.py": r"best: 0\.003 \(loss 0\.006\)\n",
    "results_on_a_disk.py": r"(?s:.*)accuracy 0\.93\n",
    "come_back_later.py": r"step 3 and exit code 0\nsubmitted\n(?s:.*)active\n",
}
