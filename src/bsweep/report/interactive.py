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
    own = "".join(map(static, ("reader.js", "page.js")))
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
<details id="why"><summary>Why</summary><div id="why-lines"></div></details>
</div>
<div class="asks">
<div class="controls">
<label id="parts"><span>Part of the study</span><select id="part"></select></label>
<label><span>Objective</span><select id="objective"></select></label>
<label id="prices"><span>Price of a worker-hour</span>
<input id="price" type="number" min="0" step="any"></label>
<label id="targets"><span>Target</span><input id="target" type="range">
<output id="target-value" for="target"></output></label>
<label><input id="measured" type="checkbox"><span>From runs alone</span></label>
</div>
<div class="controls">
<label id="cells"><span>Cell</span><select id="cell"></select></label>
<button id="reset" type="button">Reset the view</button>
<span class="end" id="save-map"></span>
</div>
<div id="reading" aria-live="polite"></div>
</div>
</div>
<section id="larger" aria-labelledby="larger-title" hidden>
<h2 id="larger-title">Larger clusters</h2>
<div class="two">
<div><h3 id="larger_time-title"></h3><div class="controls">
<span class="end" id="save-larger_time"></span></div>
<div id="larger_time" class="chart" role="img"></div></div>
<div><h3 id="larger_cost-title"></h3><div class="controls">
<span class="end" id="save-larger_cost"></span></div>
<div id="larger_cost" class="chart" role="img"></div></div>
</div>
<div id="larger-says"></div>
<p class="note">Each number of workers at its best batch, with the 90 % interval of one more run.
Dashed: simulated. A single worker needs no link and is not simulated. A ring is the knee: from
there on, more workers bring less than half of the speed that they cost. Dotted: from there on, the
best batch is larger than the critical batch size.</p>
</section>
<section id="bar" class="bar" aria-labelledby="filters-title">
<h2 id="filters-title">Filters</h2>
<div id="filters" class="controls menus"></div>
<span id="count" class="note" role="status"></span>
<button id="clear" type="button">Clear</button>
</section>
<section aria-labelledby="curves-title">
<h2 id="curves-title">Curves</h2>
<div class="controls">
<label><span>x axis</span><select id="x"></select></label>
<label><span>y axis</span><select id="y"></select></label>
<label id="colors"><span>Colour</span><select id="color"></select></label>
<label><input id="logx" type="checkbox"><span>log x</span></label>
<label><input id="logy" type="checkbox"><span>log y</span></label>
<label><span>Smoothing</span>
<input id="smooth" type="range" min="0" max="0.95" step="0.05"></label>
<span class="end" id="save-curves"></span>
</div>
<div id="curves" class="chart" role="img"></div>
<p id="curves-say" class="note"></p>
</section>
<section id="splits" aria-labelledby="splits-title" hidden>
<h2 id="splits-title">Ways of splitting the model</h2>
<h3>Training time by workers</h3><div class="controls">
<span class="end" id="save-split_times"></span></div>
<div id="split_times" class="chart" role="img"></div>
<p class="note">2x4: two replicas of the model, each split over four workers. Each way has its
fastest settings.</p>
<h3>Memory of each worker</h3><div class="controls">
<span class="end" id="save-split_memory"></span></div>
<div id="split_memory" class="chart" role="img"></div>
<p class="note">Parts of the model: one bar for each worker of a cell, the first one above. The
pointer shows activations, which only pipelines and PipeDream measure, and the peak.</p>
</section>
<section aria-labelledby="runs-title">
<h2 id="runs-title">Runs</h2>
<div class="controls">
<label><span>Search</span><input id="find" type="search"></label>
<label><input id="only" type="checkbox"><span>Selected only</span></label>
<span id="columns" class="menus"></span>
<span class="end"><button id="previous" type="button">Previous</button>
<span id="page"></span><button id="following" type="button">Next</button>
<button id="csv" type="button">CSV</button></span>
</div>
<div id="table" class="wide" tabindex="0" role="group" aria-labelledby="runs-title"></div>
</section>
</div>
<div id="run" hidden></div>
<section><details class="paper"><summary>Figures, tables and versions for papers</summary>
$below
</details></section>
</main>
<div id="tip" role="tooltip" hidden></div><div id="said" role="status" hidden></div>
<script id="study" type="text/plain">$data</script>""")
