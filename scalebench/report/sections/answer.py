"""The answer of a report (whether more devices pay and with which strategy, in a dozen words and three figures) and its
evidence (how sure that is, what is lost, and how to repeat it), whose sentences the terminal shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from scalebench.analysis import scaling_curves, verdicts
from scalebench.analysis.columns import estimate_of
from scalebench.analysis.identity import collect
from scalebench.analysis.ranking import Advice, NamedRow, Ranking, Rival, join_with_and, list_advice
from scalebench.analysis.repeats import EstimateRatio
from scalebench.analysis.scaling_curves import LENGTH, Curve, format_group_title
from scalebench.analysis.varied import Contrast, find_contrasts
from scalebench.analysis.verdicts import decide_ratio, explain_no_verdict, has_other_programs
from scalebench.core.errors import InputError
from scalebench.core.stats.estimates import CONFIDENCE, Estimate, scale_estimate
from scalebench.core.units import format_count, format_percent, format_ratio
from scalebench.report import document as doc
from scalebench.report import spec
from scalebench.report.repeat_commands import make_command, make_recipe
from scalebench.report.report_data import ReportData
from scalebench.report.sections.attribution import describe_largest_loss, find_largest_loss
from scalebench.report.tables import THROUGHPUT_HEAD, format_throughput, format_tokens, format_whole_percent, make_cell

CAPTION = (
    "Efficiency is against one device: of the bare baseline, which has no strategy around it, or where there is none, "
    "of the strategy itself. Figures behind a tied strategy: how many times as fast the fastest is."
)
MAX_TERMINAL_ANSWERS = 5
MAX_CONTRASTS, MAX_CONTRASTED = 3, 4  # keys that were varied, and values of one against the first
MAX_OTHER_PROGRAMS = 3
MAX_HEADLINE_NAMES = 2  # of strategies that are equally fast
MAX_RECIPES = 5  # groups whose fastest strategy is shown with its lines of code
QUIET = "other programs slow several devices more than one, so that only a quiet machine decides"
# Doubts that no verdict hides: limits over repeats hold them, or the row has no verdict for want of limits.
HARMLESS_DOUBTS = {"no_interval", "target_missed", "repeats_differ"}
CERTAINTY = {"best": "the best", "tied": "tied within noise", "not sure": "not sure", "alone": "nothing to compare"}


def list_verdicts(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield what each varied key does, and the verdict on each group of runs that may be compared."""
    estimate_ratio = report_data.configurations.estimate_ratio
    contrasts = find_contrasts(report_data.curves)[:MAX_CONTRASTS]
    yield from (doc.Paragraph(describe_contrast(contrast, estimate_ratio), "answer") for contrast in contrasts)
    yield from (_make_contrast_chart(contrast, estimate_ratio) for contrast in contrasts)
    for advice in report_data.advice:
        title = format_group_title(advice.group) if len(report_data.advice) > 1 else ""
        text, loss = write_headline(advice, estimate_ratio), _describe_main_loss(report_data, advice)
        tags = doc.get_tags(_get_main_row(advice)[1])
        yield doc.Verdict(text, list(_make_tiles(advice)), loss, list_doubts(advice), title, tags)
    if len(report_data.pooled) and not report_data.advice:
        yield doc.Paragraph("No run was successful, so there is no answer: the problems say why.", "warning")


def list_evidence(report_data: ReportData) -> Iterator[doc.Block]:
    """Yield what stands behind each verdict, and how to measure it again."""
    curve_of = {row["run_id"]: curve for curve in report_data.curves for row in curve.rows}
    all_advice = report_data.advice
    texts = describe_advice(all_advice, report_data.configurations.estimate_ratio)
    for number, (advice, text) in enumerate(zip(all_advice, texts, strict=True)):
        last = advice.rankings[-1]
        yield doc.Paragraph(text, "answer", doc.get_tags(_get_main_row(advice)[1]))
        yield from _explain_answer(report_data, advice, curve_of[last.row["run_id"]])
        if last.gpus > 1 or last.rivals:
            title = f": {format_group_title(advice.group)}" if len(all_advice) > 1 else ""
            yield _make_table(f"answer-{number}", title, advice.rankings)
        yield from _make_repeat_lines(report_data, advice, number < MAX_RECIPES)


def _get_main_row(advice: Advice) -> NamedRow:
    """Return the row that the answer is about: on several devices, if there is one."""
    last = advice.rankings[-1]
    return (advice.rows or [(last.best, last.row)])[0]


def write_headline(advice: Advice, estimate_ratio: EstimateRatio) -> str:
    """Return the verdict in a dozen words."""
    (name, row), last = _get_main_row(advice), advice.rankings[-1]
    if advice.kind == "one device":
        verb = {"best": "is the fastest", "alone": "with nothing to compare"}.get(last.certainty, "looks the fastest")
        if last.certainty == "tied":
            name, verb = _join_names([last.best, *(rival.name for rival in last.tied)]), "are equally fast"
        return f"Only one device was measured: {name} {verb}."
    if advice.one_device is None:
        return "Unknown whether more devices pay: one device was not measured."
    if advice.kind == "tied":
        names = _join_names([name for name, _ in advice.rows]) + f" on {format_count(row['gpus'], 'device')}"
        if len({row["gpus"] for _, row in advice.rows}) > 1:
            names = _join_names([*map(_on_devices, advice.rows)])
        return f"{names} are equally fast."
    if advice.kind == "stay":
        return f"Stay on one device: {advice.one_device[0]} is the fastest."
    if advice.kind == "take":
        times = decide_ratio(row, advice.one_device[1], estimate_ratio).value
        return f"Take {_on_devices((name, row))}: {times:.3g} times as fast as one."
    if _is_slower(advice):
        return "Stay on one device for now: more were not faster."
    return f"Not sure yet: {_on_devices((name, row))} looks the fastest."


def _is_slower(advice: Advice) -> bool:
    """Return whether the fastest row on several devices was slower than one device, certain or not."""
    single = advice.one_device
    return single is not None and _get_main_row(advice)[1][doc.THROUGHPUT] < single[1][doc.THROUGHPUT]


def _needs_quiet(advice: Advice) -> bool:
    """Return whether several devices were slower beside other programs, which slow them more than one device."""
    return advice.kind == "unsure" and _is_slower(advice) and any(has_other_programs(row) for _, row in advice.rows)


def _join_names(names: Sequence[str]) -> str:
    """Join up to MAX_HEADLINE_NAMES names, and count the others."""
    return join_with_and(doc.limit_texts(names, MAX_HEADLINE_NAMES, "{} more"))


def _make_tiles(advice: Advice) -> Iterator[doc.Tile]:
    """Make the throughput of what to take, and speedup and efficiency of the fastest row on several devices."""
    pair, single = _get_main_row(advice), advice.one_device
    rate_of = single if single is not None and _is_slower(advice) else pair
    figure, _, interval = format_throughput(rate_of[1]).partition(" ± ")
    note = "; ".join(filter(None, [format_tokens(rate_of[1]), _on_devices(rate_of)]))
    yield doc.Tile("Throughput", figure, "samples/s", interval and f"± {interval}", note)
    if advice.kind == "one device":
        return
    against = _get_baseline_kind(pair[1])
    if against is None:
        yield from (doc.Tile(name, "not measured", note="no run on one device") for name in ("Speedup", "Efficiency"))
        return
    base = "itself" if against == "self" or single is None else single[0]
    for name, unit, factor, digits, note in (
        ("Speedup", "times", 1, 2, f"against {base} on one device"),
        ("Efficiency", "%", 100, 0, f"of {_on_devices(pair)}"),
    ):
        estimate = estimate_of(pair[1], f"{name.lower()}_{against}")
        if estimate is not None:
            figure, low, high = (f"{factor * x:z.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
            interval = f"{low} to {high}{' %' * (unit == '%')}" if estimate.has_limits else "no interval"
            yield doc.Tile(name, figure, unit, interval, note)


def _describe_main_loss(report_data: ReportData, advice: Advice) -> str:
    """Name the largest part of the loss, or its size where no part is certain."""
    pair = _get_main_row(advice)
    if advice.kind == "one device":
        return ""
    loss = _describe_loss(pair[1])
    case = report_data.attributed_runs.get(str(pair[1]["run_id"]))
    largest = None if case is None else find_largest_loss(case)
    if largest is not None:
        loss = f"{loss.partition(';')[0].rstrip('.')}, {describe_largest_loss(largest)}."
    return f"{_on_devices(pair)}: {loss[0].lower()}{loss[1:]}"


def list_doubts(advice: Advice) -> list[str]:
    """Return what makes the answer doubtful, with the rows that it is about unless it is about all of them."""
    rows = [*filter(None, [advice.one_device]), *advice.rows]
    rows = list({row["run_id"]: (name, row) for name, row in rows}.values())
    pairs: list[tuple[str, str]] = []
    for name, row in rows:
        flags = (row["flags"] or "").split()
        reasons = list(filter(None, explain_no_verdict(row).split("; ")))
        reasons += [
            text
            for flag in verdicts.read_flags()
            if flag in flags and flag not in HARMLESS_DOUBTS and (text := verdicts.read_doubt(flag))
        ]
        reasons += ["it was not steady"] if row["steady"] is False and "drifts" not in flags else []
        pairs += [(reason, _on_devices((name, row))) for reason in dict.fromkeys(reasons)]
    doubts = [
        reason if len(several) == len(rows) else f"{reason} ({_join_names(several)})"
        for reason, several in sorted(collect(pairs).items(), key=lambda item: -len(item[1]))
    ]
    if _needs_quiet(advice):
        doubts.append(QUIET)
    elif advice.kind == "unsure" and advice.test:
        repeats = verdicts.count_missing_repeats(*(row for _, row in rows))
        doubts.append(f"the limits of the speedup are on both sides of 1, measure.repeats={repeats} narrows them")
    return doubts


def list_terminal_sentences(curves: Sequence[Curve], estimate_ratio: EstimateRatio) -> list[str]:
    """Return the answer for each key that was varied besides, and for each group of curves in which there is something
    to compare."""
    varied = [describe_contrast(contrast, estimate_ratio) for contrast in find_contrasts(curves)]
    all_advice = [
        advice
        for advice in list_advice(curves, estimate_ratio)
        if advice.kind != "one device" or advice.rankings[-1].rivals
    ]
    if varied:  # one number of devices, and one strategy: neither was asked about
        all_advice = [
            each for each in all_advice if each.one_device or len(each.rankings) > 1 or each.rankings[0].rivals
        ]
    answers = describe_advice(all_advice, estimate_ratio)
    return varied[:MAX_CONTRASTS] + doc.limit_texts(answers, MAX_TERMINAL_ANSWERS, "{} more answers are in the report")


def describe_contrast(contrast: Contrast, estimate_ratio: EstimateRatio) -> str:
    """Return `precision bfloat16: 0.09 [0.08, 0.10] times the samples/s of float32 (ddp on 2 devices).`"""
    (first, _), *others = contrast.rows
    ratios = _estimate_ratios(contrast, estimate_ratio)
    fastest_first = sorted(zip(others, ratios, strict=True), key=lambda pair: -pair[1].value)
    texts = [f"{value}: {format_ratio(ratio)}" for (value, _), ratio in fastest_first]
    if len(texts) > MAX_CONTRASTED + 1:  # one more value takes no more room than its count
        texts = [*texts[: MAX_CONTRASTED - 1], f"{len(texts) - MAX_CONTRASTED} others", texts[-1]]
    where = _on_devices((contrast.strategy, contrast.rows[0][1]))
    rate = "tokens/s" if contrast.key == LENGTH else "samples/s"
    text = f"{contrast.key.replace('_', ' ')} {', '.join(texts)} times the {rate} of {first} ({where})"
    if not all(ratio.has_limits for ratio in ratios):
        return f"{text}; no verdict: {explain_no_verdict(*(row for _, row in contrast.rows))}."
    is_resolved = any(not ratio.low <= 1 <= ratio.high for ratio in ratios)
    return f"{text}." if is_resolved else f"{text}: no difference beyond noise."


def _estimate_ratios(contrast: Contrast, estimate_ratio: EstimateRatio) -> list[Estimate]:
    """Return the throughput of each row over that of the first, in tokens where these are what differs, with intervals
    that hold together, as in a ranking."""
    (_, base), *others = contrast.rows
    confidence = 1 - (1 - CONFIDENCE) / len(others)
    ratios = [decide_ratio(row, base, estimate_ratio, confidence) for _, row in others]
    if contrast.key != LENGTH:
        return ratios
    return [scale_estimate(ratio, row[LENGTH] / base[LENGTH]) for ratio, (_, row) in zip(ratios, others, strict=True)]


def _make_contrast_chart(contrast: Contrast, estimate_ratio: EstimateRatio) -> doc.Chart:
    """Draw what `describe_contrast` says, in the order of the sweep."""
    key, (first, base) = contrast.key.replace("_", " "), contrast.rows[0]
    ratios = [Estimate(1.0), *_estimate_ratios(contrast, estimate_ratio)]
    low, high = zip(*(ratio.limits for ratio in ratios), strict=True)
    where = _on_devices((contrast.strategy, base))
    values, tags = [value for value, _ in contrast.rows], [doc.get_tags(row) for _, row in contrast.rows]
    series = doc.Series(where, values, [ratio.value for ratio in ratios], low, high, point_tags=tags)
    together = ", which hold together" if len(ratios) > 2 else ""
    caption = doc.join_sentences(
        f"{'tokens/s' if contrast.key == LENGTH else 'throughput'} of {where} over that with the first value, {first}; "
        "more is better",
        f"bars have 95 % intervals over repeats{together}" if any(ratio.has_limits for ratio in ratios[1:]) else "",
    )
    chart_id, title = doc.make_id("answer-by", contrast.key), f"Throughput by {key}, over that of {first}"
    return doc.Chart(chart_id, title, doc.Axis(key), doc.Axis("times"), [series], "bars", caption)


def describe_advice(all_advice: Sequence[Advice], estimate_ratio: EstimateRatio) -> list[str]:
    """Return the answer for each group, which is named if there are several."""
    if len(all_advice) == 1:
        return [_describe(all_advice[0], estimate_ratio)]
    return [f"{format_group_title(advice.group)}: {_describe(advice, estimate_ratio)}" for advice in all_advice]


def _describe(advice: Advice, estimate_ratio: EstimateRatio) -> str:
    """Return the answer: what to take, by how much it is faster than one device, and which rows carry no verdict."""
    last, single = advice.rankings[-1], advice.one_device
    if advice.kind == "one device":
        return f"More than one device was not measured. {describe_ranking(last)}"
    if single is None:
        row = advice.rows[0][1]
        fastest = f"{_on_devices(advice.rows[0])}, {format_throughput(row, ' samples/s')}"
        why = (
            f"its steps on one device have other samples than scaling={row['scaling']} means"
            if "other_scaling" in (row["flags"] or "").split()
            else "nothing was measured on one device (baseline=auto adds it)"
        )
        return f"Whether more devices pay is unknown: {why}. The fastest was {fastest}."
    names = join_with_and(
        [f"{_on_devices(pair)}{f' ({tokens})' if (tokens := format_tokens(pair[1])) else ''}" for pair in advice.rows]
    )
    ratios = [decide_ratio(row, single[1], estimate_ratio) for _, row in advice.rows]
    faster = join_with_and([format_ratio(ratio) for ratio in ratios])
    rows = [row for _, row in (single, *advice.rows)]
    lead = _describe_lead(ranking) if (ranking := _find_ranking(advice)) else ""
    times = f"{faster} times as fast as {single[0]} on one device{lead and f' and {lead}'}"
    if advice.test and (disturbed := [row for row in rows if has_other_programs(row)]):
        cores = max((row.get("cpu_cores_others_mean") or 0.0 for row in disturbed), default=0.0)
        others = list(dict.fromkeys(name for row in disturbed for name in (row.get("other_programs") or "").split()))
        took = f" that took {cores:.2g} core{'' if f'{cores:.2g}' == '1' else 's'}" if cores else ""
        times += f", beside other programs{took}{': ' * bool(others)}{', '.join(others[:MAX_OTHER_PROGRAMS])}"
    if advice.kind == "take":
        text = f"Take {names}: {times}."
    elif advice.kind == "tied":
        text = f"{names} are equally fast within noise: {times}."
    elif advice.kind == "stay":
        behind = [f"{_on_devices(pair)} by {format_whole_percent(_subtract_from_1(ratio))}"
                  for pair, ratio in zip(advice.rows, ratios, strict=True)]  # fmt: skip
        text = f"Stay on one device: {single[0]}. Slower than that: {join_with_and(behind)}."
    else:
        more = f"more repeats narrow the limits: measure.repeats={verdicts.count_missing_repeats(*rows)}"
        missing = QUIET if _needs_quiet(advice) else more if advice.test else explain_no_verdict(*rows)
        verdict = "Stay on one device for now" if _is_slower(advice) else "Not sure that more devices pay"
        text = f"{verdict}: {names} {'is' if len(advice.rows) == 1 else 'are'} {times}; {missing}."
    pairs = [(explain_no_verdict(pair[1]), _on_devices(pair)) for pair in advice.left_out] if advice.test else []
    texts = [f"No verdict on {join_with_and(several)}: {reason}." for reason, several in collect(pairs).items()]
    return " ".join([text, *texts])


def _find_ranking(advice: Advice) -> Ranking | None:
    """Return the ranking whose fastest row is the one to take, or of those that are equally fast, which the answer
    compares with the first slower strategy."""
    return next(
        (each for each in advice.rankings if advice.kind in ("take", "tied") and each.row is advice.rows[0][1]), None
    )


def _describe_lead(ranking: Ranking, on_devices: bool = True) -> str:
    """Return `1.31 [1.25, 1.37] times as fast as the next on 2 devices (ddp_gloo)`; empty if nothing is slower beyond
    noise."""
    first = next((rival for rival in ranking.rivals if rival.verdict == "slower"), None)
    if first is None:
        return ""
    who = "the next" if first is ranking.rivals[0] else "the first that is slower beyond noise"
    where = f" on {format_count(ranking.gpus, 'device')}" if on_devices else ""
    return f"{format_ratio(first.ratio)} times as fast as {who}{where} ({first.name})"


def describe_ranking(ranking: Ranking, with_lead: bool = True) -> str:
    """Return `At 2 devices: mirrored, 40,828 samples/s, 1.31 [1.25, 1.37] times as fast as the next (ddp_gloo).`"""
    parts = [
        f"At {format_count(ranking.gpus, 'device')}: {ranking.best}, {format_throughput(ranking.row, ' samples/s')}"
    ]
    if not ranking.rivals:
        return f"{parts[0]}; nothing else was measured there."
    if ranking.tied:
        parts.append(f"tied within noise with {join_with_and([_format_rival(rival) for rival in ranking.tied])}")
    if ranking.undecided:
        against = join_with_and([_format_rival(rival) for rival in ranking.undecided])
        for in_rounds in (None, False):  # rows that took turns may have done so with others
            names = collect((explain_no_verdict(row, in_rounds=in_rounds), name) for name, row in ranking.rows)
            names.pop("", None)
            if names:
                break
        why = "; ".join(f"{reason} ({', '.join(members)})" for reason, members in names.items())
        parts.append(f"not sure against {against}: {why or 'no interval'}")
    if with_lead and (lead := _describe_lead(ranking, on_devices=False)):
        parts.append(lead)
    return f"{', '.join(parts)}."


def _format_rival(rival: Rival) -> str:
    """Return `ddp_gloo (1.31 [1.25, 1.37])`."""
    return f"{rival.name} ({format_ratio(rival.ratio)})"


def _on_devices(pair: NamedRow) -> str:
    name, row = pair
    return f"{name} on {format_count(row['gpus'], 'device')}"


def _explain_answer(report_data: ReportData, advice: Advice, curve: Curve) -> Iterator[doc.Block]:
    """Make the paragraphs about the largest number of devices, the test, and what reduces trust in the figures."""
    last, tags = advice.rankings[-1], dict(curve.tags)
    if last.gpus > 1:
        against = _get_baseline_kind(last.row)
        limit = scaling_curves.find_scaling_limit(curve, report_data.min_efficiency, against) if against else None
        reach = "" if limit is None else _describe_scaling_limit(limit, last.best)
        ranking = describe_ranking(last, with_lead=last is not _find_ranking(advice))
        yield doc.Paragraph(" ".join(filter(None, [ranking, reach, _describe_loss(last.row)])), tags=tags)
    if test := advice.test or last.test:
        yield doc.Paragraph(f"How sure: {test}.", tags=tags)
    if doubts := list_doubts(advice):
        yield doc.Paragraph(f"Limits of these figures: {'; '.join(doubts)}.", "warning", tags)


def _describe_scaling_limit(limit: scaling_curves.ScalingLimit, name: str) -> str:
    if limit.largest_measured is None or limit.gpus == 1:  # one device is the baseline
        return ""
    share = f"{name} keeps an efficiency of {format_percent(limit.efficiency).replace('.0 ', ' ')}"
    if limit.gpus is None:
        return f"{share} at no number of devices."
    most = ", the most that were measured" if limit.gpus == limit.largest_measured else ""
    certain = "at none" if limit.certain_gpus is None else format_count(limit.certain_gpus, "device")
    sure = "" if limit.certain_gpus == limit.gpus else f" (with certainty {certain})"
    return f"{share} up to {format_count(limit.gpus, 'device')}{most}{sure}."


def _describe_loss(row: dict[str, Any]) -> str:
    """Describe 1 - efficiency, and how much of it the strategy already costs on one device."""
    against = _get_baseline_kind(row)
    efficiency = estimate_of(row, f"efficiency_{against}")
    if efficiency is None:
        return "The loss is unknown: no baseline on one device was measured."
    if efficiency.value >= 1:
        return f"Nothing is lost: its efficiency is {format_whole_percent(efficiency)}."
    ideal = "" if against == "bare" else ", in which each device is as fast as one alone,"
    loss = f"{format_whole_percent(_subtract_from_1(efficiency))} of ideal throughput{ideal} is lost"
    has_overhead = against == "bare" and (row["overhead_share"] or 0) > 0
    return f"{loss}; on one device it loses {make_cell(row, 'overhead_share').text}." if has_overhead else f"{loss}."


def _subtract_from_1(share: Estimate) -> Estimate:
    return Estimate(1 - share.value, 1 - share.high, 1 - share.low)


def _make_table(name: str, title: str, rankings: Sequence[Ranking]) -> doc.Table:
    """Make the table of the fastest strategies."""
    rows = []
    for ranking in rankings:
        kind = _get_baseline_kind(ranking.row)
        rows.append((doc.get_tags(ranking.row), {
            "devices": ranking.gpus, "fastest": ranking.best, THROUGHPUT_HEAD: make_cell(ranking.row, doc.THROUGHPUT),
            "efficiency": make_cell(ranking.row, f"efficiency_{kind}"), "against": kind,
            "how sure": doc.Cell(CERTAINTY[ranking.certainty], ranking.certainty),
            "tied with": ", ".join(map(_format_rival, ranking.tied)),
        }))  # fmt: skip
    words = ("fastest", "against", "how sure", "tied with")
    return spec.make_table(name, f"The fastest for each number of devices{title}", rows, words, CAPTION)


def _make_repeat_lines(report_data: ReportData, advice: Advice, with_code: bool) -> Iterator[doc.Block]:
    """Make the command that measures the answer again, or makes it sure, and the lines of the strategy to take for a
    program of the user's."""
    if not advice.rows or advice.kind == "stay":
        return
    name, row = advice.rows[0]
    target, tags = _on_devices((name, row)), doc.get_tags(row)
    if advice.kind not in ("take", "tied"):
        compared = [each for _, each in (*advice.rows, *filter(None, [advice.one_device]))]
        command = make_command({**row, "repeats": verdicts.count_missing_repeats(*compared)}, report_data.unreadable)
        if command is not None:
            yield doc.Code(command, "sh", f"Measure {target} so that limits hold over repeats", tags)
        return
    if command := make_command(row, report_data.unreadable):
        yield doc.Code(command, "sh", f"Measure {target} again", tags)
    try:
        device = report_data.result(row["run_id"]).scale.device
    except (InputError, KeyError):  # its file has been removed since
        device = "cuda"
    recipe = make_recipe(row["strategy"], row["gpus"], device, row["options"]) if with_code else None
    if recipe is None:
        return
    if recipe.page:
        yield doc.Paragraph(f"{recipe.page} shows how a program of your own uses {row['strategy']}.", tags=tags)
        return
    title = f"The lines for {target}, around a model, an optimizer, a loss and batches of your own"
    yield doc.Code(recipe.code, "python", title, tags)
    yield doc.Code(recipe.start_command, "sh", "Start them", tags)
    if recipe.left_out:
        yield doc.Paragraph(f"These lines do not set {join_with_and(recipe.left_out)}.", tags=tags)


def _get_baseline_kind(row: dict[str, Any]) -> str | None:
    return next((kind for kind in ("bare", "self") if row[f"efficiency_{kind}"] is not None), None)
