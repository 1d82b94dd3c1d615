// Colours have a contrast of 4.5 to 1 or more in both themes, also on lit lines.
export const CSS = `
:host, .code-view { font: 14px/1.4 var(--st-font, sans-serif); color: light-dark(#1c1b1a, #ececea); }
.code-view { display: flex; flex-direction: column; gap: .5rem; }
.bar { display: flex; flex-wrap: wrap; gap: .375rem; align-items: center; }
.bar .gap { flex: 1 1 0; }
.code-view button, .code-view input { font: inherit; font-size: 13px; color: inherit; background: transparent;
  border: 1px solid light-dark(#8a8783, #77756f); border-radius: .375rem; padding: .125rem .5rem; min-height: 28px; }
.code-view button { cursor: pointer; white-space: nowrap; }
.code-view button:hover:enabled { background: light-dark(#ebe8e2, #35332f); }
.code-view button:disabled { cursor: default; border-style: dotted; color: light-dark(#66635e, #a3a09a); }
.code-view button[aria-pressed=true] { background: light-dark(#dfe7f5, #24364f); border-color: light-dark(#33598f, #7fa6dd); }
.code-view :is(button, input, summary):focus-visible { outline: 2px solid light-dark(#1d5fb8, #8ab8f5); outline-offset: 1px; }
.code-view input { width: 15rem; }
.status { min-height: 1.4em; font-size: 13px; color: light-dark(#45423d, #c9c6c0); overflow-wrap: anywhere; }
.panes { display: flex; gap: .5rem; align-items: stretch; }
.pane { flex: 1 1 0; min-width: 0; display: flex; flex-direction: column; border: 1px solid light-dark(#c9c5bd, #4a4843);
  border-radius: .375rem; overflow: hidden; }
.pane[hidden] { display: none; }
.head { display: flex; gap: .375rem; align-items: center; padding: .25rem .5rem; border-bottom: 1px solid light-dark(#dcd8d0, #3c3a36); }
.head strong { font-weight: 600; }
.head .size { font-size: 12px; color: light-dark(#5c5953, #b3b0a9); flex: 1; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.head button { font-size: 12px; padding: 0 .375rem; min-height: 24px; }
.cm-editor { height: 600px; background: light-dark(#fff, #191817); color: light-dark(#1c1b1a, #ececea); }
.cm-editor.cm-focused { outline: 2px solid light-dark(#1d5fb8, #8ab8f5) !important; outline-offset: -2px; }
.cm-scroller { font: 12px/1.45 var(--st-code-font, monospace); }
.cm-gutters { background: light-dark(#f6f4f0, #211f1d) !important; color: light-dark(#66635e, #a3a09a) !important; border: 0 !important; }
.cm-activeLineGutter, .cm-activeLine:not(.c, .lit) { background: transparent !important; }
.cm-focused .cm-activeLine { box-shadow: inset 0 0 0 1px light-dark(#1d5fb8, #8ab8f5); }

.cm-line { border-left: 4px solid transparent; padding-left: 4px; }
.code-view .cm-line.c { border-left-color: hsl(var(--hue) 65% 50%); background: light-dark(hsl(var(--hue) 75% 50% / .09), hsl(var(--hue) 75% 55% / .12)); }
.code-view .cm-line.lit { background: light-dark(hsl(var(--hue, 45) 90% 45% / .20), hsl(var(--hue, 45) 80% 55% / .23)); }
.c0 { --hue: 210 } .c1 { --hue: 30 } .c2 { --hue: 130 } .c3 { --hue: 320 } .c4 { --hue: 180 } .c5 { --hue: 60 } .c6 { --hue: 270 } .c7 { --hue: 0 }
.code-view .found, .code-view .found * { color: light-dark(#1c1b1a, #fff) !important; }
.found { background: light-dark(#ffe28a, #6b5300); }
.found.current { background: light-dark(#ffc233, #8a6a00); outline: 1px solid light-dark(#6b4a00, #ffdf8a); }
.folded { font: inherit !important; line-height: 1 !important; min-height: 0 !important; padding: 0 .375rem !important; margin-left: .25rem; }
.cm-lineNumbers .loop { box-shadow: inset 3px 0 0 light-dark(#1d5fb8, #8ab8f5); }
.kinds .kind { display: inline-block; width: 1.3em; text-align: center; font-weight: 600; border-radius: 2px; color: light-dark(#1c1b1a, #ececea); }
.k-mma { background: light-dark(#bfe3c4, #1f5130) } .k-fma { background: light-dark(#d7ead2, #2c4526) }
.k-copy { background: light-dark(#cfe0f7, #22406a) } .k-global { background: light-dark(#cfe0f7, #22406a) }
.k-shared { background: light-dark(#e5dcf7, #433166) } .k-spill, .k-local { background: light-dark(#f9c9c4, #7a241c) }
.k-barrier { background: light-dark(#f7dfb8, #5f430c) } .k-branch { background: light-dark(#e6e3dc, #3a3833) }
:is(.pressure, .stalls) .number { display: inline-block; min-width: 2.6em; text-align: right; padding: 0 .25em; color: light-dark(#45423d, #c9c6c0);
  background: linear-gradient(to right, light-dark(#f3cfae, #6d3f14) var(--share), transparent var(--share)); }
.t-comment { color: light-dark(#48515b, #b3bbc5) } .t-keyword { color: light-dark(#0b4f9e, #9cc4ff) } .t-string { color: light-dark(#8a2f0b, #f2b493) }
.t-number { color: light-dark(#7a2a6b, #eab0df) } .t-variable { color: light-dark(#1f5b2e, #a6dbae) } .t-type { color: light-dark(#0f5a63, #93d7df) }
.t-label { color: light-dark(#6b4700, #e8c77e) } .t-meta { color: light-dark(#55527a, #bdbaf0) } .t-atom { color: light-dark(#8c1d3f, #f5a9bf) }
.stalls .number { min-width: 1.6em; background: linear-gradient(to right, light-dark(#cfe0f7, #22406a) var(--share), transparent var(--share)); }
.sass .t-variable, .sass .t-atom { cursor: pointer; }
.cm-line.value { box-shadow: inset 0 0 0 1px light-dark(#8c1d3f, #f5a9bf); }
.cm-line.value.defines { box-shadow: inset 0 0 0 2px light-dark(#8c1d3f, #f5a9bf); }
.value .register, .value .register * { background: light-dark(#8c1d3f, #f5a9bf); color: light-dark(#fff, #1c1b1a) !important; border-radius: 2px; }
.estimate { font-size: 13px; }
.estimate summary { cursor: pointer; width: fit-content; }
.estimate ul { margin: .25rem 0; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: .125rem 1.5rem; font-variant-numeric: tabular-nums; }
.estimate p { margin: .25rem 0 0; max-width: 75rem; color: light-dark(#45423d, #c9c6c0); }
.narrow .cm-editor { height: clamp(300px, 70dvh, 600px); }
.narrow :is(.head, .bar) button { min-height: 32px; }
.narrow :is(.bar button:disabled, .gap) { display: none; }
.narrow .bar .bar:has(input) { flex: 1 1 8rem; flex-wrap: nowrap; }
.narrow .bar input { flex: 1; width: 4rem; min-height: 32px; }
.code-view.full { position: fixed; inset: 0; width: auto; height: auto; margin: 0; padding: .5rem; border: 0; box-sizing: border-box;
  overflow: auto; background: light-dark(#fff, #191817); color: inherit; }
.full .panes { flex: 1 0 300px; }
.full .pane { min-height: 0; }
.full .cm-editor { flex: 1 1 0; height: auto; min-height: 0; }
`;
