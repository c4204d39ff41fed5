"""One HTML page with the curves of all tasks and figures, their numbers and their origin.

The page is self-contained: no script, no style sheet, no network.
"""

from proxlin.bench.report.contents import Contents as Contents
from proxlin.bench.report.contents import Entry as Entry
from proxlin.bench.report.contents import contents as contents
from proxlin.bench.report.contents import gather as gather
from proxlin.bench.report.page import page as page
from proxlin.bench.report.page import write_report as write_report
