// Everything at once, figures last: they take longest.

async function start() {
  setUpTables();
  setUpMatrix();
  setUpPrinting();
  restoreScroll();
  await setUpFigures();
  restoreScroll();
  watchScroll();
  if (report.refresh) keepReloading(report.refresh);
  document.documentElement.dataset.ready = "yes";
}

start();
