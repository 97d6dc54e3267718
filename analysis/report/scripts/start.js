// Set up all parts; figures last, because they take longest.

async function start() {
  setUpTables();
  setUpMatrix();
  setUpPrinting();
  restoreLists();
  restoreInnerScroll();
  restoreFocus();
  restoreScroll();
  await setUpFigures();
  restoreScroll();
  watchPlaces();
  if (report.refresh) keepReloading(report.refresh);
  document.documentElement.dataset.ready = "yes";
}

start();
