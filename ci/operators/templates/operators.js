const $ = id => document.getElementById(id);
function show() {
  const word = $('word').value.toLowerCase(), scheme = $('scheme').value, result = $('result').value;
  let count = 0;
  for (const row of document.querySelectorAll('tbody tr')) {
    const cells = [...row.querySelectorAll('td[data-scheme]')]
      .filter(cell => !scheme || cell.dataset.scheme === scheme);
    const results = cells.flatMap(cell => cell.dataset.results.split(' '));
    const named = row.querySelector('th').textContent.toLowerCase().includes(word)
      && (!$('soc').value || row.dataset.soc === $('soc').value);
    row.hidden = !(named && cells.length && (!result || results.includes(result)));
    count += !row.hidden;
  }
  for (const cell of document.querySelectorAll('[data-scheme]'))
    cell.hidden = scheme && cell.dataset.scheme !== scheme;
  $('count').textContent = count + ' rows';
}
for (const id of ['word', 'scheme', 'result', 'soc']) $(id).addEventListener('input', show);
show();
