"""`ratio`: texts a second of 64 callers with one text each on Infer streams, over those of 64-text requests."""

from __future__ import annotations

import statistics

from bench import load, mesh, report, texts

BAR = 0.75
ROUNDS = 3
SECONDS = 8.0
CALLERS = 64
IN_FLIGHT = 8


def main() -> None:
    figures = {}
    with mesh.running_mesh() as running:
        for lengths in texts.LENGTHS:
            figures[lengths] = _measure(running, lengths, ROUNDS if lengths == "lognormal" else 1)
            report.say(f"{lengths}: {figures[lengths]['ratio']}")
    main_figure = figures["lognormal"]
    report.result(
        "ratio",
        main_figure["ratio"]["median"],
        f">= {BAR}",
        spread=main_figure["ratio"],
        mean_batch_texts=main_figure["mean_batch_texts"],
        load_generator_cores=main_figure["load_generator_cores"],
        by_lengths=figures,
    )


def _measure(running, lengths: str, rounds: int) -> dict:
    ratios, singles, wholes, cpus = [], [], [], []
    for seed in range(rounds):
        whole = load.run(running.address, "unary64", lengths, SECONDS, seed, IN_FLIGHT)
        cpu = mesh.cpu_seconds(running)
        single = load.run(running.address, "infer1", lengths, SECONDS, seed, CALLERS)
        cpus.append(mesh.cores(cpu, mesh.cpu_seconds(running), single["loaded_s"]))
        again = load.run(running.address, "unary64", lengths, SECONDS, seed, IN_FLIGHT)
        ratios.append(single["texts_per_s"] / statistics.mean([whole["texts_per_s"], again["texts_per_s"]]))
        singles.append(single)
        wholes += [whole, again]
    return {
        "ratio": report.spread(ratios),
        "one_text": singles,
        "sixty_four_texts": wholes,
        "mean_batch_texts": statistics.mean(s["mean_batch_texts"] for s in singles),
        "load_generator_cores": statistics.median(s["cpu_cores"] for s in singles),
        "cores_by_process": cpus[-1],
    }


if __name__ == "__main__":
    main()
