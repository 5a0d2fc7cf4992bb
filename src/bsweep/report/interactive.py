"""The interactive page of a study.

It is a document (`bsweep.report.document`), the scripts that draw it, and the static part of a
report below. The document is compressed, and the scripts put its texts on the page as texts only.
Where scripts are not run, the answer and the warnings stand on the page as text.
"""

from __future__ import annotations

import base64
import html
import zlib
from string import Template

import orjson

from bsweep.report.document import Document
from bsweep.report.page import as_list, headlines, page, static

_LEVEL = 6  # of the compression


def html_of(document: Document, below: str = "", live: str = "") -> str:
    """Return the HTML of the interactive page of a study.

    Args:
        document: What `bsweep.report.document.document` returns.
        below: HTML to fold away at the end of the page.
        live: A script to run after the page's own ones, which may ask the server of the page.

    Returns:
        The whole page.
    """
    body = _BODY.substitute(
        title=html.escape(document["name"]),
        answer=headlines([*document["why"], *document["missing"]]),
        warnings=as_list("Warnings", document["warnings"], "warnings"),
        data=base64.b64encode(zlib.compress(orjson.dumps(document), _LEVEL)).decode(),
        below=below,
    )
    own = "".join(map(static, ("texts.js", "reader.js", "page.js")))
    scripts = [static("vega.min.js"), own, *[live] * bool(live)]
    return page(f"{document['name']} - bsweep report", body, scripts, bool(live))


_BODY = Template("""<header><h1 id="title">$title</h1><p id="summary"></p>
<div class="tools"><select id="theme" aria-label="Look"></select></div></header>
<noscript><p>Filtering and choosing on this page need JavaScript. Its static part is below.</p>
<div class="paper">$answer
$warnings</div></noscript>
<main>
<p id="misread" role="status" hidden></p>
<div id="overview">
<div class="first">
<section class="answer" aria-labelledby="question">
<h2 id="question"></h2>
<div aria-live="polite"><p><span id="best"></span> <span id="amount"></span></p><p id="sure"></p>
</div>
</section>
<section id="times" class="times" aria-labelledby="map-title">
<h2 id="map-title"></h2>
<div id="map" class="chart" role="img"></div>
<p id="map-says" class="note"></p>
</section>
<div class="rest">
<div id="next"></div>
<div id="warnings" hidden></div>
<details id="why"><summary data-words="why"></summary><div id="why-lines"></div></details>
</div>
<div class="asks">
<div class="controls">
<label id="parts"><span data-words="part"></span><select id="part"></select></label>
<label><span data-words="objective"></span><select id="objective"></select></label>
<label id="prices"><span data-words="price"></span>
<input id="price" type="number" min="0" step="any"></label>
<label id="targets"><span data-words="target"></span><input id="target" type="range">
<output id="target-value" for="target"></output></label>
<label><input id="measured" type="checkbox"><span data-words="measured"></span></label>
</div>
<div class="controls">
<label id="cells"><span data-words="choose_cell"></span><select id="cell"></select></label>
<button id="reset" type="button" data-words="reset"></button>
<span class="end" id="save-map"></span>
</div>
<div id="reading" aria-live="polite"></div>
</div>
</div>
<section id="larger" aria-labelledby="larger-title" hidden>
<h2 id="larger-title" data-words="larger"></h2>
<div class="two">
<div><h3 id="larger_time-title"></h3><div class="controls">
<span class="end" id="save-larger_time"></span></div>
<div id="larger_time" class="chart" role="img"></div></div>
<div><h3 id="larger_cost-title"></h3><div class="controls">
<span class="end" id="save-larger_cost"></span></div>
<div id="larger_cost" class="chart" role="img"></div></div>
</div>
<div id="larger-says"></div>
<p class="note" data-words="larger_says"></p>
</section>
<section id="bar" class="bar" aria-labelledby="filters-title">
<h2 id="filters-title" data-words="filters"></h2>
<div id="filters" class="controls menus"></div>
<span id="count" class="note" role="status"></span>
<button id="clear" type="button" data-words="clear"></button>
</section>
<section aria-labelledby="curves-title">
<h2 id="curves-title" data-words="curves"></h2>
<div class="controls">
<label><span data-words="x_axis"></span><select id="x"></select></label>
<label><span data-words="y_axis"></span><select id="y"></select></label>
<label id="colors"><span data-words="colour"></span><select id="color"></select></label>
<label><input id="logx" type="checkbox"><span data-words="log_x"></span></label>
<label><input id="logy" type="checkbox"><span data-words="log_y"></span></label>
<label><span data-words="smoothing"></span>
<input id="smooth" type="range" min="0" max="0.95" step="0.05"></label>
<span class="end" id="save-curves"></span>
</div>
<div id="curves" class="chart" role="img"></div>
<p id="curves-say" class="note"></p>
</section>
<section id="splits" aria-labelledby="splits-title" hidden>
<h2 id="splits-title" data-words="splits"></h2>
<h3 data-words="split_times"></h3><div class="controls">
<span class="end" id="save-split_times"></span></div>
<div id="split_times" class="chart" role="img"></div>
<p class="note" data-words="split_times_say"></p>
<h3 data-words="split_memory"></h3><div class="controls">
<span class="end" id="save-split_memory"></span></div>
<div id="split_memory" class="chart" role="img"></div>
<p class="note" data-words="split_memory_says"></p>
</section>
<section aria-labelledby="runs-title">
<h2 id="runs-title" data-words="runs"></h2>
<div class="controls">
<label><span data-words="search"></span><input id="find" type="search"></label>
<label><input id="only" type="checkbox"><span data-words="selected_only"></span></label>
<span id="columns" class="menus"></span>
<span class="end"><button id="previous" type="button" data-words="previous"></button>
<span id="page"></span><button id="following" type="button" data-words="following"></button>
<button id="csv" type="button">CSV</button></span>
</div>
<div id="table" class="wide" tabindex="0" role="group" aria-labelledby="runs-title"></div>
</section>
</div>
<div id="run" hidden></div>
<section><details class="paper"><summary data-words="paper">Figures, tables and provenance</summary>
$below
</details></section>
</main>
<div id="tip" role="tooltip" hidden></div><div id="said" role="status" hidden></div>
<script id="study" type="text/plain">$data</script>""")
