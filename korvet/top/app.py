"""The terminal application of `korvet top`.

Textual runs on asyncio, in the main thread. The samples are taken on Trio, in a worker thread of the application, which
ends with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import trio
from attrs import define, field
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.css.query import NoMatches
from textual.message import Message
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane
from textual.worker import get_current_worker

from korvet.client import Security, open_client
from korvet.protocol.errors import KafkaError, SaslAuthenticationFailed
from korvet.top.sampling import Sample, Sampler
from korvet.top.tables import ALL, BY_METRICS, COMMITTED, NUMBERS, PARTITIONS, Row, Tables, arranged

REQUEST_LIMIT_S = 10.0
NO_METRICS = "connections and the broker's inside need --metrics http://HOST:PORT/metrics"
# Limit of the rows of a table: Textual builds each of them again for every sample.
MOST_ROWS = 1_000
# The pause after a sample, in times that the sample took: a large cluster is asked a fifth of the time at most.
PAUSES = 4
RETRY_LIMIT_S = 2.0  # then the reason is shown, and the cluster is asked again


class Sampled(Message):
    """A sample was taken."""

    def __init__(self, sample: Sample) -> None:
        super().__init__()
        self.sample = sample


class Unavailable(Message):
    """No sample could be taken. If the reason is final, the application ends."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__()
        self.reason = reason
        self.is_final = is_final


@define(frozen=True)
class WatchedCluster:
    """The cluster to show, and how often."""

    servers: str
    security: Security
    interval_s: float
    metrics: str | None = None


class Table(DataTable[Text]):
    """A table whose rows are replaced by every sample, while cursor and order stay."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "next_column", "Sort by next column"),
        Binding("r", "reverse", "Reverse"),
    ]

    def __init__(self, headings: Sequence[str], **options: Any) -> None:
        super().__init__(cursor_type="row", zebra_stripes=True, **options)
        self.headings = headings
        self.column = 0
        self.is_descending = False
        self.words = ""
        self.left_out = 0
        self._all: list[Row] = []

    def on_mount(self) -> None:
        self._head([])

    def _head(self, rows: Sequence[Row]) -> None:
        self.clear(columns=True)
        for number, heading in enumerate(self.headings):
            mark = (" ▼" if self.is_descending else " ▲") if number == self.column else "  "
            # Given, because the table would compute it later, and cut cells until then.
            width = max(len(heading) + 2, *(len(each.cells[number]) for each in rows), 0)
            self.add_column(self._cell(heading + mark, heading), key=heading, width=width)

    def show(self, rows: Sequence[Row]) -> None:
        """Replace the rows. The cursor stays on the row with the same key."""
        self._all = list(rows)
        selected, line = self.selected, self.cursor_row
        offset = self.scroll_offset
        found = arranged(rows, column=self.column, is_descending=self.is_descending, words=self.words)
        shown = found[:MOST_ROWS]
        self.left_out = len(found) - len(shown)
        self._head(shown)
        for each in shown:
            cells = (self._cell(cell, name) for cell, name in zip(each.cells, self.headings, strict=True))
            self.add_row(*cells, key=each.key)
        keys = [each.key for each in shown]
        if keys:
            target = keys.index(selected) if selected in keys else min(line, len(keys) - 1)
            self.move_cursor(row=target, animate=False)
        self.scroll_to(offset.x, offset.y, animate=False)

    @property
    def selected(self) -> str | None:
        """The key of the row with the cursor."""
        if not 0 <= self.cursor_row < self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def find(self, words: str) -> None:
        """Show only rows whose keys contain these words."""
        self.words = words
        self.show(self._all)

    def action_next_column(self) -> None:
        self.column = (self.column + 1) % len(self.headings)
        self.is_descending = self.headings[self.column] in NUMBERS
        self.show(self._all)

    def action_reverse(self) -> None:
        self.is_descending = not self.is_descending
        self.show(self._all)

    def _cell(self, text: str, heading: str) -> Text:
        # A Text, because names may contain what Rich takes for markup.
        return Text(text, justify="right" if heading in NUMBERS else "left")


class Details(Screen[None]):
    """The partitions of one topic, or the committed offsets of one group."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "app.pop_screen", "Back")]

    def __init__(self, title: str, headings: Sequence[str], rows: Callable[[Tables], list[Row]]) -> None:
        super().__init__()
        self.heading = title
        self.headings = headings
        self.rows = rows

    def compose(self) -> ComposeResult:
        yield Static(Text(self.heading), classes="heading")
        yield Table(self.headings)
        yield Footer()

    def show(self, tables: Tables) -> None:
        self.query_one(Table).show(self.rows(tables))


class Top(App[str]):
    """The application. It returns the reason for its end if the cluster refused the login."""

    TITLE = "korvet top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    .heading { height: 1; padding: 0 1; background: $primary-background; }
    #find { display: none; height: 1; border: none; }
    #notes { height: auto; max-height: 3; color: $warning; padding: 0 1; }
    Screen { overflow: hidden; }
    TabbedContent, ContentSwitcher, TabPane, Table { height: 1fr; padding: 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q,ctrl+c", "quit", "Quit"),
        # With priority, so that it is done before the next key is looked at, which belongs to the text.
        Binding("slash", "find", "Find", priority=True),
        Binding("p", "pause", "Pause"),
        Binding("1", "tab('topics')", "Topics"),
        Binding("2", "tab('groups')", "Groups"),
        Binding("3", "tab('brokers')", "Brokers"),
        Binding("4", "tab('connections')", "Connections"),
        Binding("5", "tab('inside')", "Inside"),
        Binding("6", "tab('lake')", "Lake"),
        Binding("7", "tab('transactions')", "Transactions"),
    ]

    def __init__(self, source: WatchedCluster) -> None:
        super().__init__()
        self.source = source
        self.tables: Tables | None = None
        self.is_paused = False
        self._feed = Feed(source, self)

    def compose(self) -> ComposeResult:
        yield Static("connecting …", id="summary", classes="heading")
        yield Input(placeholder="part of a name; Enter or Escape closes", id="find", compact=True)
        with TabbedContent(id="tabs"):
            for name, (headings, _) in ALL.items():
                with TabPane(name.capitalize(), id=name):
                    yield Vertical(Table(headings, id=f"{name}-table"))
        yield Static("", id="notes")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#topics-table", Table).focus()
        self.take_samples()

    @work(thread=True, exit_on_error=True)
    def take_samples(self) -> None:
        worker = get_current_worker()
        trio.run(self._feed.run, lambda: worker.is_cancelled)

    def on_unmount(self) -> None:
        self._feed.stop()

    # --- Samples ----------------------------------------------------------------------------------------

    def on_sampled(self, event: Sampled) -> None:
        """Show a sample beside the one before."""
        sample = event.sample
        if self.is_paused or not self.screen_stack:  # no screens: the application is closing
            return
        self.tables = Tables(sample, self.tables.now if self.tables is not None else None)
        with suppress(NoMatches):  # as it closes, widgets are removed before their screen
            self._render_tables()
            self.query_one("#notes", Static).update(Text("\n".join(self._notes(sample)[:3])))

    def _notes(self, sample: Sample) -> list[str]:
        left_out = self._active_table().left_out
        cut = [f"{left_out:,} more rows; / finds them"] if left_out else []
        return [*cut, *sample.notes]

    def _render_tables(self) -> None:
        tables = self.tables
        if tables is None:
            return
        main = self.screen_stack[0]
        for name, (_, rows) in ALL.items():
            main.query_one(f"#{name}-table", Table).show(rows(tables))
        self._show_summary(summary(tables))
        if isinstance(self.screen, Details):
            self.screen.show(tables)

    def _show_summary(self, text: str) -> None:
        line = Text(text, no_wrap=True, overflow="ellipsis")
        self.screen_stack[0].query_one("#summary", Static).update(line)

    def on_unavailable(self, event: Unavailable) -> None:
        """Show why there is no sample. The last one stays, marked as not current."""
        if event.is_final:
            self.exit(message=event.reason, return_code=1)
        elif self.screen_stack:
            with suppress(NoMatches):  # as in `on_sampled`
                notes = self.screen_stack[0].query_one("#notes", Static)
                notes.update(Text(f"{event.reason}; trying again"))
                if self.tables is not None:
                    self._show_summary(f"not current: {summary(self.tables)}")

    # --- Keys -------------------------------------------------------------------------------------------

    def action_tab(self, name: str) -> None:
        if isinstance(self.screen, Details):
            self.pop_screen()
        self.query_one(TabbedContent).active = name
        if name in BY_METRICS and self.source.metrics is None:
            self.notify(NO_METRICS)
        self.query_one(f"#{name}-table", Table).focus()

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self.notify("paused; p goes on" if self.is_paused else "live")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return False if a key has no command now: within the search, a slash is a part of the text."""
        if action == "find":
            return not isinstance(self.screen, Details) and not self.query_one("#find", Input).display
        return super().check_action(action, parameters)

    def action_find(self) -> None:
        box = self.query_one("#find", Input)
        box.display = True
        # Not `box.focus()`, which is later: the next keys may have arrived already.
        self.screen.set_focus(box)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._active_table().find(event.value)

    def on_input_submitted(self) -> None:
        self._close_find()

    def key_escape(self) -> None:
        box = self.query_one("#find", Input)
        if box.display:
            box.value = ""
            self._close_find()

    def _close_find(self) -> None:
        self.query_one("#find", Input).display = False
        self._active_table().focus()

    def _active_table(self) -> Table:
        return self.query_one(f"#{self.query_one(TabbedContent).active}-table", Table)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        key = event.row_key.value
        if key is None or self.tables is None or isinstance(self.screen, Details):
            return
        if event.data_table.id == "topics-table":
            screen = Details(f"Topic {key}", PARTITIONS, lambda tables: tables.partitions(key))
        elif event.data_table.id == "groups-table":
            screen = Details(f"Group {key}", COMMITTED, lambda tables: tables.committed_offsets(key))
        else:
            return
        tables = self.tables
        self.push_screen(screen)
        self.call_after_refresh(lambda: screen.show(tables))


def summary(tables: Tables) -> str:
    """Return the first line: what the cluster is, and what it does now."""
    now = tables.now
    measured = (
        (tables.total_in(), "records/s in"),
        (tables.requests(), "requests/s"),
        (tables.connections(), "connections"),
    )
    parts = [f"{value:,.0f} {unit}" for value, unit in measured if value is not None]
    for count, word in ((len(now.brokers), "broker"), (len(now.topics), "topic"), (len(now.groups), "group")):
        parts.append(f"{count:,} {word}{'' if count == 1 else 's'}")
    return f"{', '.join(parts)}; cluster {now.cluster_id}"


@define(eq=False)
class Feed:
    """Takes samples in a thread, and passes them to the application without waiting for it."""

    source: WatchedCluster
    app: Top
    _token: trio.lowlevel.TrioToken | None = None
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    def stop(self) -> None:
        """End `run`, from another thread."""
        if self._token is not None:
            try:
                trio.from_thread.run_sync(self._scope.cancel, trio_token=self._token)
            except trio.RunFinishedError:
                return

    async def run(self, is_cancelled: Callable[[], bool]) -> None:
        """Take samples until `stop`. Connect again after errors."""
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            while not is_cancelled():
                try:
                    await self._sample()
                except SaslAuthenticationFailed as error:
                    self.app.post_message(Unavailable(error.message, is_final=True))
                    return
                except KafkaError as error:
                    self.app.post_message(Unavailable(error.message))
                await trio.sleep(self.source.interval_s)

    async def _sample(self) -> None:
        source = self.source
        async with open_client(
            source.servers,
            security=source.security,
            request_timeout_s=REQUEST_LIMIT_S,
            retry_timeout_s=RETRY_LIMIT_S,
        ) as client:
            sampler = Sampler(client, source.metrics)
            while True:
                began = trio.current_time()
                sample = await sampler.take()
                self.app.post_message(Sampled(sample))
                took_s = trio.current_time() - began
                await trio.sleep(max(self.source.interval_s, PAUSES * took_s))
